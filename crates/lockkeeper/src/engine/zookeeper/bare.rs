//! Bare sessions with the ensemble of a URL, opened the way this engine opens
//! its own: for whoever measures what a lock costs beside them.

use zookeeper_client::{Acls, Client};

use super::config::{ZooKeeper, ZooKeeperAcl};
use super::{connect, layout};
use crate::error::Result;
use crate::name::LockName;

#[doc(hidden)]
impl ZooKeeper {
    /// Opens a session.
    ///
    /// # Errors
    /// As connecting the engine.
    ///
    /// # Cancel safety
    /// Changes nothing: a session half opened ends by itself.
    pub async fn bare(&self) -> Result<Client> {
        self.check()?;
        connect::connect(self).await
    }

    /// Who may touch our nodes.
    pub fn acls(&self) -> Acls<'static> {
        match self.acl {
            ZooKeeperAcl::Open => Acls::anyone_all(),
            ZooKeeperAcl::Creator => Acls::creator_all(),
        }
    }

    /// The node of a name, below the chroot.
    pub fn node_of(&self, name: &LockName) -> String {
        layout::dir(name)
    }

    /// Whom to ask for their statistics; nobody where questions are encrypted.
    pub fn plain_members(&self) -> &[(String, u16)] {
        if self.tls { &[] } else { &self.members }
    }
}
