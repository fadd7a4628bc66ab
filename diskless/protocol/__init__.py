"""What clients and agents both speak: frames, and the messages in them."""
