"""Commands about files in the artifact store."""
