"""A trained model: recommending, saving, loading, folding in new users and updating."""
