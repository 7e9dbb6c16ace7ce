//! Fields that have one of a few words.

use serde::Serialize;
use utoipa::ToSchema;

/// Enums of words, which JSON has in snake case.
macro_rules! words {
    ($($(#[$about:meta])* $name:ident { $($word:ident),* })*) => {$(
        $(#[$about])*
        #[derive(Serialize, ToSchema)]
        #[schema(rename_all = "snake_case")]
        pub(super) enum $name { $($word),* }
    )*};
}

words! {
    PredictionType { Content }
    TextPartType { Text }
    Mode { Auto, Off, Lookup, Draft }
    FormatType { Text, JsonObject, JsonSchema }
    /// How long the model is to think.
    Effort { None, Minimal, Low, Medium, High, Xhigh }
    /// How long the model is to speak.
    Verbosity { Low, Medium, High }
    PlainRole { User, System, Developer }
    AssistantRole { Assistant }
    ToolRole { Tool }
    FunctionType { Function }
    ToolMode { Auto, None, Required }
    AllowedType { AllowedTools }
    AllowedMode { Auto, Required }
    MessageType { Message }
    InputRole { User, Assistant, System, Developer }
    ItemStatus { InProgress, Completed, Incomplete }
    InputPartType { InputText, OutputText }
    InputCallType { FunctionCall }
    InputCallOutputType { FunctionCallOutput }
}
