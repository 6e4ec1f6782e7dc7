import java.io.File;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.zookeeper.server.DataNode;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/**
 * Sets the counter that sequential children of a node are numbered by, in the
 * data of a server that is down: it takes weeks to get there by creating them.
 *
 * Arguments: the server's data folder, the node's path, the counter.
 */
public class PresetCounter {
    public static void main(String[] args) throws Exception {
        File folder = new File(args[0]);
        FileTxnSnapLog log = new FileTxnSnapLog(folder, folder);
        DataTree tree = new DataTree();
        ConcurrentHashMap<Long, Integer> sessions = new ConcurrentHashMap<>();
        log.restore(tree, sessions, (header, record, digest) -> { });
        DataNode node = tree.getNode(args[1]);
        if (node == null) {
            throw new IllegalArgumentException(args[1] + " is not in " + folder);
        }
        node.stat.setCversion(Integer.parseInt(args[2]));
        log.save(tree, sessions, true);
        log.close();
    }
}
