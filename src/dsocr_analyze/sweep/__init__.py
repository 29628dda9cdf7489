"""What-ifs: every combination of sizes, modes, lengths and batches. No torch in this room."""
