//! The names that a model pair goes by in requests.

/// What clients may call a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// Its own name.
    pub main: &'a str,
    /// Those that mean the same (`model.aliases`).
    pub aliases: &'a [String],
}

impl<'a> Names<'a> {
    /// The name that was asked for, if it is one of these.
    pub fn find(&self, asked: &str) -> Option<&'a str> {
        self.all().find(|name| *name == asked)
    }

    /// All of them, its own first.
    pub fn all(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        std::iter::once(self.main).chain(self.aliases.iter().map(String::as_str))
    }
}
