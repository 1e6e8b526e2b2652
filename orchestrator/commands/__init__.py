"""One file a command. Their modules import nothing heavy: what a command needs is imported when it runs."""
