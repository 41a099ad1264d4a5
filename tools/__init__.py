"""Scripts for the people who work on lowdnn; ``README.md`` lists them."""
