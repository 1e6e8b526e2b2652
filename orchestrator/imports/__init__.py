"""Results of other programs, read as cells of the matrix: history that began before haloctl did."""
