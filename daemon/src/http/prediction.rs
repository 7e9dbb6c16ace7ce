//! `prediction`: the text that a client expects to get back, or most of it, as when a file is edited. It is proposed where it fits, so
//! that few passes are needed; what comes is what would have come without it.

use std::sync::Arc;

use faser_engine::TokenId;

use super::encoding;
use super::errors::ApiError;
use super::messages::content;
use crate::app::Served;
use crate::fields::{FieldError, Fields};

/// The field's text, if it is there.
///
/// # Errors
/// It is not of the form `{"type": "content", "content": …}`.
pub(super) fn prediction(fields: &mut Fields<'_>) -> Result<Option<String>, FieldError> {
    let Some(mut prediction) = fields.object("prediction")? else { return Ok(None) };
    if prediction.word("type", &["content"])?.is_none() {
        return Err(prediction.missing("type", "is missing: the only type is `content`"));
    }
    let text = content(&mut prediction)?;
    prediction.finish()?;
    Ok(Some(text))
}

/// Its tokens, no more of them than an output could have; none without a prediction.
///
/// # Errors
/// 400: the tokenizer cannot express it.
pub(super) async fn predicted(served: &Arc<Served>, text: Option<&str>) -> Result<Vec<TokenId>, ApiError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    encoding::beginning(served, text.to_owned(), served.max_context).await
}
