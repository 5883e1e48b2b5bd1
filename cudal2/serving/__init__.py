"""`cudal2 serve`: the judge as a service for other programs, over HTTP. Nothing else in cudal2 imports this."""
