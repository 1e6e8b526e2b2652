"""The inputs of stages that are no artifacts: models and files, whose content is what the job was planned with."""
