//! Grammars that an output has to follow: compiled once per request, followed token by token, asked which tokens may come next.

mod compiler;
mod matcher;
mod schema;
mod words;

#[cfg(test)]
pub(super) mod tests;

pub use compiler::{
    Grammar, GrammarCompiler, GrammarError, GrammarProgram, GrammarSource, GrammarVocabulary,
};
pub use matcher::{ForcedToken, GrammarCancel, GrammarMatcher, GrammarTurn, TokenMask};
