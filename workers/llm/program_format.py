"""The format of the config.json beside a program, which exporters write and sessions read."""

FORMAT = 2  #: raised when programs of the one before can't be called as they are now
