"""The toolchains of a site: their specifications, locks, environments and releases."""
