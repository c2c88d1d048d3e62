"""What every process needs around its own work: lifecycle, health, metrics, failpoints."""
