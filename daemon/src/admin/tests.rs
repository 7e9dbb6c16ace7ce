//! The admin API in process.
