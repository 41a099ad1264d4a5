"""The engines of cross-channel local response normalisation and of divisive normalisation."""
