"""Small torch modules and closed-form distributions, from which policies are composed."""
