"""What a story and a novel say of people, places, years and events, and where they contradict; without a model."""
