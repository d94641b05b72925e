"""What a cold object is: its name, its model, its bytes."""
