//! Wrong variants.
