import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Stream;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Takes locks with the real Curator, as told in lines on standard input.
 *
 * Arguments: the servers, the session in milliseconds. Commands:
 *   mutex PATH COUNT FOLDER          locks again and again before a witness
 *   readwrite PATH COUNT FOLDER      the same, one in four as the writer
 *   semaphore-N PATH COUNT FOLDER    the same with N permits
 *   lock PATH, release               holds a mutex in between
 *   read PATH, write PATH, release   holds one side of a read/write lock
 *   solo PATH COUNT                  times a free mutex
 *   race PATH CLIENTS COUNT          times a contended one
 */
public class CuratorPeer {
    private static String servers;
    private static int session;
    private static AutoCloseable held;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        session = Integer.parseInt(args[1]);
        CuratorFramework client = connect();
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            String path = words.length > 1 ? words[1] : "";
            if (words[0].equals("mutex") || words[0].equals("readwrite") || words[0].startsWith("semaphore-")) {
                visit(client, words[0], path, Integer.parseInt(words[2]), Path.of(words[3]));
                say("done");
            } else if (words[0].equals("lock") || words[0].equals("read") || words[0].equals("write")) {
                say("granted " + hold(client, words[0], path));
            } else if (words[0].equals("release")) {
                held.close();
                say("released");
            } else if (words[0].equals("solo")) {
                solo(client, path, Integer.parseInt(words[2]));
            } else if (words[0].equals("race")) {
                race(path, Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            } else {
                say("error unknown command " + line);
            }
        }
    }

    private static CuratorFramework connect() throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                servers, session, 10_000, new ExponentialBackoffRetry(50, 8));
        client.start();
        client.blockUntilConnected();
        return client;
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** A mutex that tells which node it has. */
    private static class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client, String path) { super(client, path); }
        String node() { return getLockPath(); }
    }

    /** The write side of a read/write lock, telling the same. */
    private static class Writer extends InterProcessReadWriteLock.WriteLock {
        Writer(CuratorFramework client, String path) { super(client, path, null); }
        String node() { return getLockPath(); }
    }

    /** The number that only grows: the transaction that made the node. */
    private static long token(CuratorFramework client, String node) throws Exception {
        return client.checkExists().forPath(node).getCzxid();
    }

    private static long hold(CuratorFramework client, String how, String path) throws Exception {
        if (how.equals("lock")) {
            Mutex mutex = new Mutex(client, path);
            mutex.acquire();
            held = mutex::release;
            return token(client, mutex.node());
        }
        if (how.equals("write")) {
            Writer writer = new Writer(client, path);
            writer.acquire();
            held = writer::release;
            return token(client, writer.node());
        }
        InterProcessMutex reader = new InterProcessReadWriteLock(client, path).readLock();
        reader.acquire();
        held = reader::release;
        return 0;
    }

    private static void visit(CuratorFramework client, String kind, String path, int count, Path folder)
            throws Exception {
        Witness witness = new Witness(folder);
        Random random = new Random();
        Mutex mutex = new Mutex(client, path);
        Writer writer = new Writer(client, path);
        InterProcessMutex reader = new InterProcessReadWriteLock(client, path).readLock();
        int permits = kind.startsWith("semaphore-") ? Integer.parseInt(kind.substring(10)) : 0;
        InterProcessSemaphoreV2 semaphore =
                permits > 0 ? new InterProcessSemaphoreV2(client, path, permits) : null;
        for (int turn = 0; turn < count; turn++) {
            if (kind.equals("mutex")) {
                mutex.acquire();
                witness.exclusive(token(client, mutex.node()));
                mutex.release();
            } else if (permits > 0) {
                Lease lease = semaphore.acquire();
                witness.shared(permits);
                semaphore.returnLease(lease);
            } else if (random.nextInt(4) == 0) {
                writer.acquire();
                witness.exclusive(token(client, writer.node()));
                writer.release();
            } else {
                reader.acquire();
                witness.shared(1000);
                reader.release();
            }
        }
    }

    private static void solo(CuratorFramework client, String path, int count) throws Exception {
        long[] nanos = new long[count];
        Mutex mutex = new Mutex(client, path);
        for (int turn = -count / 4; turn < count; turn++) {
            long start = System.nanoTime();
            mutex.acquire();
            mutex.release();
            if (turn >= 0) {
                nanos[turn] = System.nanoTime() - start;
            }
        }
        Arrays.sort(nanos);
        say("solo " + nanos[count / 2] + " " + nanos[count * 9 / 10]);
    }

    /** Every client locks in turn; all of them wait all the time. */
    private static void race(String path, int clients, int count) throws Exception {
        CountDownLatch ready = new CountDownLatch(clients);
        CountDownLatch go = new CountDownLatch(1);
        Thread[] threads = new Thread[clients];
        for (int index = 0; index < clients; index++) {
            CuratorFramework client = connect();
            threads[index] = new Thread(() -> {
                try {
                    Mutex mutex = new Mutex(client, path);
                    mutex.acquire();
                    mutex.release();
                    ready.countDown();
                    go.await();
                    for (int turn = 0; turn < count / clients; turn++) {
                        mutex.acquire();
                        mutex.release();
                    }
                    client.close();
                } catch (Exception error) {
                    say("error " + error);
                }
            });
            threads[index].start();
        }
        ready.await();
        long start = System.nanoTime();
        go.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
        say("race " + (System.nanoTime() - start));
    }

    /** Sees by files of its own who is inside; src/witness.rs is the same in Rust. */
    private static class Witness {
        private final Path folder;
        private final String who = "curator-" + ProcessHandle.current().pid();
        private final Random random = new Random();

        Witness(Path folder) { this.folder = folder; }

        void exclusive(long token) throws Exception {
            stay("exclusive", 1, token);
        }

        void shared(int limit) throws Exception {
            stay("shared-" + who, limit, 0);
        }

        private void stay(String file, int limit, long token) throws Exception {
            passGate(() -> {
                long exclusive = count("exclusive");
                long shared = count("shared-");
                boolean alone = file.equals("exclusive");
                boolean bad = exclusive > 0 || (alone ? shared > 0 : shared + 1 > limit);
                try {
                    Files.createFile(folder.resolve(file));
                } catch (FileAlreadyExistsException overlap) {
                    bad = true;
                }
                String word = bad ? "overlap" : alone ? "exclusive" : "shared";
                String line = word + " " + token + " " + (shared + 1) + " " + who + "\n";
                Files.write(folder.resolve("log"), line.getBytes(StandardCharsets.UTF_8),
                        StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            });
            // Now and then long enough for all the others to come in too.
            if (!file.equals("exclusive") && random.nextInt(4) == 0) {
                Thread.sleep(20);
            }
            passGate(() -> Files.deleteIfExists(folder.resolve(file)));
        }

        private long count(String prefix) throws IOException {
            try (Stream<Path> files = Files.list(folder)) {
                return files.filter(file -> file.getFileName().toString().startsWith(prefix)).count();
            }
        }

        private interface Step { void run() throws IOException; }

        /** One at a time: a list of files made while they change may show too many. */
        private void passGate(Step step) throws Exception {
            Path gate = folder.resolve("gate");
            while (true) {
                try {
                    Files.createFile(gate);
                    break;
                } catch (FileAlreadyExistsException taken) {
                    Thread.sleep(0, 100_000);
                }
            }
            try {
                step.run();
            } finally {
                Files.delete(gate);
            }
        }
    }
}
