"""Running a model in torch on several ranks."""
