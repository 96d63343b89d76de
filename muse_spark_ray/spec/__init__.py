"""What users write: training configs and sweep specs, read, validated and explained."""
