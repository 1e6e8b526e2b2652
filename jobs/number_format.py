"""Numbers as people read them."""


def format_number(value: float) -> str:
    """Return three significant digits, without an exponent between 0.001 and 100,000.

    A rounded value shows all three digits, 0.800; a value that has fewer keeps them, 0.8.
    """
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        if abs(value) >= 999.5 or value == round(value):
            return f"{value:.0f}"
        short = f"{value:.3g}"
        return short if float(short) == value else f"{value:#.3g}".removesuffix(".")
    return f"{value:.2e}"
