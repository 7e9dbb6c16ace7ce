//! What the parts of an output are, and in which of them it begins.

/// What a text is to its reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// The answer.
    #[default]
    Content,
    /// What leads to it.
    Reasoning,
    /// The name of a function, all of it: a call of it begins.
    Call,
    /// The arguments of the last call.
    Arguments,
}

/// Where an output begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The model may think first, or not.
    Possible,
    /// Within its reasoning.
    Open,
    /// Behind it.
    Closed,
}
