// Copies a state store from one of Spark's state store providers to another, and sums one up: the two loops that are
// too slow when each row crosses from Python into the JVM. Compiled in the driver by Spark's own compiler (Janino),
// which knows neither lambdas nor for-each over generics. See airflow_ft/spark/state/copying.py.
package airflow_ft;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStoreIterator;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair;
import scala.Option;

public final class StateCopy {
  private static final String FAMILY = "default";

  /** All rows at a version (and its unique id, in checkpoint format 2) into an empty store, as its version at + 1. */
  public String copy(
      StateStoreProvider from, long version, Option id, StateStoreProvider to, long at, boolean loadEmpty) {
    ReadStateStore source = from.getReadStore(version, id);
    try {
      StateStore target = to.getStore(at, Option.empty(), false, loadEmpty);
      try {
        String found = visit(source, target);
        target.commit();
        return found;
      } finally {
        if (!target.hasCommitted()) {
          target.abort();
        }
      }
    } finally {
      source.abort();
    }
  }

  /** What `copy` has returned, of a store as it is read again. */
  public String sum(StateStoreProvider of, long version, Option id) {
    ReadStateStore store = of.getReadStore(version, id);
    try {
      return visit(store, null);
    } finally {
      store.abort();
    }
  }

  /** The number of rows, and a sum over hashes of key and value, which does not depend on their order. */
  private static String visit(ReadStateStore source, StateStore target) {
    long rows = 0;
    long sum = 0;
    StateStoreIterator found = source.iterator(FAMILY);
    try {
      while (found.hasNext()) {
        UnsafeRowPair row = (UnsafeRowPair) found.next();
        sum += hash(row.value(), hash(row.key(), 42L));
        rows++;
        if (target != null) {
          target.put(row.key(), row.value(), FAMILY);
        }
      }
    } finally {
      found.close();
    }
    return rows + " " + Long.toHexString(sum);
  }

  private static long hash(UnsafeRow row, long seed) {
    return XXH64.hashUnsafeBytes(row.getBaseObject(), row.getBaseOffset(), row.getSizeInBytes(), seed);
  }
}
