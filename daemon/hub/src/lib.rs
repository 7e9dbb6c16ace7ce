//! Models by their names on the Hugging Face hub: what a name says, the cache that Python's `huggingface_hub` shares, and the download of
//! what a model needs. It knows nothing of tensors, and of a model's files only which there are.

mod cache;
mod checksum;
mod client;
mod download;
mod error;
mod model_name;
mod pull;
mod settings;
mod wanted;

pub use self::cache::{Cache, CachedModel, repo_of};
pub use self::error::HubError;
pub use self::model_name::{Choice, ModelName, NameError};
pub use self::pull::{Downloaded, Pulled, pull};
pub use self::settings::Settings;
pub use self::wanted::Extent;
