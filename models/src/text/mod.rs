//! Text on both sides of the model: tokenizer, incremental detokenizer, chat template.

mod bounded;
mod bytes;
mod calls;
mod careful;
mod chat_template;
mod clock;
mod detokenizer;
mod grammar;
mod python_json;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use self::calls::{CallEvent, CallForm, CallFormat, CallParser, Function};
pub use self::chat_template::ChatTemplate;
pub use self::detokenizer::Detokenizer;
pub use self::grammar::{Grammar, GrammarCompiler, GrammarError, GrammarMatcher, GrammarSource, TokenMask};
pub use self::tokenizer::Tokenizer;
