"""haloctl over HTTP: an interface for programs and pages for people, from the answers of the command line."""
