"""Fine-tuning of models, under a toolchain that has trl and peft."""
