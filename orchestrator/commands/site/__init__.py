"""Commands about the site: head, node, nodes, toolchains, db."""
