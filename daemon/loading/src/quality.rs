//! What the target that a config names loses by its dtype, over a text.

use faser_actors::Dtype;
use faser_config::{Config, ConfigError};
use faser_hub::Extent;
use faser_models::Quality;

use crate::config_pair::{Watch, pair};
use crate::error::LoadError;
use crate::fetch::fetched;

/// Loads the target twice, with weights, keys and values as the config holds them and in f32, whatever the device, and reads up to so many tokens of `text` with both on the CPU.
///
/// # Errors
/// A file that is missing or wrong; a text that is too short.
pub fn quality(
    config: &Config,
    text: &str,
    most: usize,
    watch: Watch<'_>,
) -> Result<(Quality, Dtype), LoadError> {
    let held = [("model.dtype", config.model.dtype), ("kv.cache_dtype", config.kv.cache_dtype)];
    if let Some((key, _)) = held.into_iter().find(|(_, dtype)| *dtype == Some(Dtype::Fp8)) {
        let message = format!(
            "`--quality` reads the text on the CPU, which has no `{key}: fp8`: leave it out, or choose another dtype for it"
        );
        return Err(ConfigError { place: None, message }.into());
    }
    let config = &fetched(config, Extent::Whole, watch)?;
    let pair = pair(config, false)?;
    let mut tokens = pair.tokenizer.encode_beginning(text, most.saturating_add(1))?;
    tokens.truncate(most.saturating_add(1));
    if tokens.len() < 2 {
        return Err(LoadError::ShortText(tokens.len()));
    }
    let held = pair.weights.dtype;
    let model = pair.weights.target_in(held, watch)?.with_kv(config.kv_dtype(held));
    let in_f32 = pair.weights.target_in(Dtype::F32, watch)?;
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    let quality = Quality::of(&model, &in_f32, &tokens, config.device.threads.unwrap_or_else(all))?;
    Ok((quality, held))
}
