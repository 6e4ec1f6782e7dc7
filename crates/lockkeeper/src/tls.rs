//! What all encrypted connections have in common.

/// Settles which cryptography the process uses, unless its program has.
///
/// Clients that leave the choice open fail as soon as two providers are linked
/// in, which the features of unrelated crates can bring about.
pub(crate) fn choose_provider() {
    use rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        // Another thread may be first; then it is there all the same.
        let _ = ring::default_provider().install_default();
    }
}
