//! Text on both sides of the model: tokenizer, incremental detokenizer, chat template.

mod bounded;
mod bytes;
mod calls;
mod catch_panic;
mod channel;
mod chat_template;
mod detokenizer;
mod generation_block;
mod gguf_text;
mod grammar;
mod harmony;
mod jinja;
mod long;
mod python;
mod reasoning;
mod template_files;
mod template_input;
#[cfg(test)]
mod tests;
mod tokenizer;
mod tokenizer_files;

pub use self::calls::{CallEvent, CallForm, CallFormat, CallParser, Function};
pub use self::channel::{Channel, ReasoningStart};
pub use self::chat_template::ChatTemplate;
pub use self::detokenizer::Detokenizer;
pub use self::grammar::{
    ForcedToken, Grammar, GrammarCancel, GrammarCompiler, GrammarError, GrammarMatcher, GrammarProgram,
    GrammarSource, GrammarTurn, GrammarVocabulary, TokenMask,
};
pub use self::long::Encoded;
pub use self::reasoning::{ReasoningFormat, ReasoningParser};
pub use self::template_input::{Conversation, LastTurn};
pub use self::tokenizer::Tokenizer;
