"""Running again what ran: reproduce, verify, bisect."""
