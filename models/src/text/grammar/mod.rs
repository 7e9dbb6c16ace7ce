//! Grammars that an output has to follow: compiled once per request, followed token by token, asked which tokens may come next.

mod compiler;
mod matcher;

#[cfg(test)]
mod tests;

pub use compiler::{Grammar, GrammarCompiler, GrammarError, GrammarSource};
pub use matcher::{ForcedToken, GrammarMatcher, TokenMask};
