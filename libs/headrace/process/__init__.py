"""What every process does around its own work: lifecycle, health, its figures, failpoints."""
