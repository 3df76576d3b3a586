"""EC2: machines rented for as long as a pool lives, reached by SSH, found again by their tags."""
