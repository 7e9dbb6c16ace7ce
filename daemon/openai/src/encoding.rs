//! Texts of requests to token ids. Long ones are tokenized beside the thread that serves everybody's streams, a few at a time, and no further
//! than they are of use.

use std::sync::Arc;

use actix_web::web;
use faser_engine::TokenId;
use faser_models::{Encoded, ModelError, Tokenizer};

use super::errors::ApiError;
use super::params::Kept;
use crate::pairs::Served;

/// Longer texts go to another thread.
const LONG_TEXT_BYTES: usize = 16 << 10;

/// Token ids of a prompt.
///
/// # Errors
/// 400: it has more tokens than the context, which may be found out without counting them; or the tokenizer cannot express it.
pub(super) async fn prompt(
    served: &Arc<Served>,
    text: String,
    add_special: bool,
    kept: Kept,
) -> Result<Vec<TokenId>, ApiError> {
    if kept != Kept::All {
        // Its end is kept, however long it is.
        return all(served, text, add_special).await;
    }
    let most = served.max_context;
    let encoded =
        encoded(served, text, move |tokenizer, text| tokenizer.encode_within(text, add_special, most))
            .await?;
    match encoded {
        // With too many of them as well: whoever takes it says how many.
        Encoded::All(ids) => Ok(ids),
        Encoded::TooMany => {
            let message = format!(
                "the prompt has more than {most} tokens, but the context holds {most}, those that are generated among them: shorten the prompt"
            );
            Err(ApiError::bad_request(message, Some("prompt"), "context_length_exceeded"))
        }
    }
}

/// Token ids of a text of any length.
///
/// # Errors
/// The tokenizer cannot express it.
pub(super) async fn all(
    served: &Arc<Served>,
    text: String,
    add_special: bool,
) -> Result<Vec<TokenId>, ApiError> {
    encoded(served, text, move |tokenizer, text| tokenizer.encode(text, add_special)).await
}

/// The first token ids of a text, for what need not be exact.
///
/// # Errors
/// The tokenizer cannot express it.
pub(super) async fn beginning(
    served: &Arc<Served>,
    text: String,
    most: usize,
) -> Result<Vec<TokenId>, ApiError> {
    encoded(served, text, move |tokenizer, text| tokenizer.encode_beginning(text, most)).await
}

async fn encoded<T: Send + 'static>(
    served: &Arc<Served>,
    text: String,
    encode: impl FnOnce(&Tokenizer, &str) -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ApiError> {
    if text.len() <= LONG_TEXT_BYTES {
        return Ok(encode(&served.tokenizer, &text)?);
    }
    let tokenizer = Arc::clone(&served.tokenizer);
    // None only if it were closed, which nobody does. The thread keeps the place: it works on when the client is gone.
    let place = Arc::clone(&served.encoding).acquire_owned().await.ok();
    let done = web::block(move || {
        let _place = place;
        encode(&tokenizer, &text)
    });
    Ok(done.await.map_err(|err| ApiError::internal(err.to_string(), "internal_error"))??)
}
