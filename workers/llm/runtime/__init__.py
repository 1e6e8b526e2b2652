"""Loading compiled programs on devices and calling them."""
