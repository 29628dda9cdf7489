"""What-ifs: every combination of sizes, modes, lengths and batches. Never imports torch."""
