import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.DataGetters;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalMap;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.LocalZonedTimestampType;
import org.apache.paimon.types.MapType;
import org.apache.paimon.types.RowType;
import org.apache.paimon.types.TimestampType;

/**
 * Paimon's own library over one table: `java Table.java WAREHOUSE DATABASE TABLE rows|compact|expire|clean [COLUMN ID]`.
 *
 * <p>`rows` prints a line of JSON for each row: numbers, dates (days) and times (microseconds) as whole numbers,
 * floating point by its bits, decimals as texts, bytes as hexadecimal digits, maps as lists of pairs.
 */
public final class Table {
    private Table() {}

    public static void main(String[] given) throws Exception {
        Options options = new Options();
        options.set("warehouse", given[0]);
        try (Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options))) {
            FileStoreTable table = (FileStoreTable) catalog.getTable(Identifier.create(given[1], given[2]));
            switch (given[3]) {
                case "rows" -> rows(table, given.length > 4 ? given[4] : null, given.length > 5 ? Long.parseLong(given[5]) : 0);
                case "compact" -> compact(table);
                case "expire" -> System.out.println(table.newExpireSnapshots()
                        .config(ExpireConfig.builder().snapshotRetainMax(1).snapshotRetainMin(1).build()).expire());
                case "clean" -> System.out.println(LocalOrphanFilesClean.executeDatabaseOrphanFiles(
                        catalog, given[1], given[2], System.currentTimeMillis() + 1000, 1, false).getDeletedFileCount());
                default -> throw new IllegalArgumentException(given[3]);
            }
        }
    }

    private static void rows(FileStoreTable table, String column, long id) throws Exception {
        RowType type = table.rowType();
        ReadBuilder reading = table.newReadBuilder();
        if (column != null) {
            Predicate where = new PredicateBuilder(type).equal(type.getFieldIndex(column), id);
            reading = reading.withFilter(where);
        }
        StringBuilder out = new StringBuilder();
        try (RecordReader<InternalRow> reader = reading.newRead().createReader(reading.newScan().plan())) {
            reader.forEachRemaining(row -> out.append(ofRow(row, type)).append('\n'));
        }
        System.out.write(out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }

    /** Puts all files of each partition and bucket together. */
    private static void compact(FileStoreTable table) throws Exception {
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        List<CommitMessage> done = new ArrayList<>();
        if (table.bucketMode() == BucketMode.BUCKET_UNAWARE) {
            FileStoreTable small = table.copy(Map.of("compaction.min.file-num", "2", "target-file-size", "128 mb"));
            BaseAppendFileStoreWrite write = (BaseAppendFileStoreWrite) small.store().newWrite("other");
            for (AppendCompactTask task : new AppendCompactCoordinator(small, false).run()) {
                done.add(task.doCompact(small, write));
            }
            try (BatchTableCommit commit = builder.newCommit()) {
                commit.commit(done);
            }
        } else {
            try (BatchTableWrite write = builder.newWrite(); BatchTableCommit commit = builder.newCommit()) {
                write.withIOManager(org.apache.paimon.disk.IOManager.create(System.getProperty("java.io.tmpdir")));
                for (Split split : table.newReadBuilder().newScan().plan().splits()) {
                    DataSplit data = (DataSplit) split;
                    write.compact(data.partition(), data.bucket(), true);
                }
                commit.commit(write.prepareCommit());
            }
        }
        System.out.println(done.size());
    }

    private static String ofRow(InternalRow row, RowType type) {
        List<String> parts = new ArrayList<>();
        int at = 0;
        for (DataField field : type.getFields()) {
            parts.add(text(field.name()) + ": " + of(row, at++, field.type()));
        }
        return "{" + String.join(", ", parts) + "}";
    }

    private static String of(DataGetters row, int at, DataType type) {
        if (row.isNullAt(at)) {
            return "null";
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN: return String.valueOf(row.getBoolean(at));
            case TINYINT: return String.valueOf(row.getByte(at));
            case SMALLINT: return String.valueOf(row.getShort(at));
            case INTEGER: case DATE: case TIME_WITHOUT_TIME_ZONE: return String.valueOf(row.getInt(at));
            case BIGINT: return String.valueOf(row.getLong(at));
            case FLOAT: return String.valueOf(Float.floatToIntBits(row.getFloat(at)));
            case DOUBLE: return String.valueOf(Double.doubleToLongBits(row.getDouble(at)));
            case CHAR: case VARCHAR: return text(row.getString(at).toString());
            case BINARY: case VARBINARY: return text(HexFormat.of().formatHex(row.getBinary(at)));
            case DECIMAL: {
                DecimalType kind = (DecimalType) type;
                return text(row.getDecimal(at, kind.getPrecision(), kind.getScale()).toBigDecimal().toPlainString());
            }
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return String.valueOf(row.getTimestamp(at, ((TimestampType) type).getPrecision()).toMicros());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return String.valueOf(row.getTimestamp(at, ((LocalZonedTimestampType) type).getPrecision()).toMicros());
            case ARRAY: return ofArray(row.getArray(at), ((ArrayType) type).getElementType());
            case MAP: {
                InternalMap map = row.getMap(at);
                List<String> pairs = new ArrayList<>();
                for (int each = 0; each < map.size(); each++) {
                    pairs.add("[" + of(map.keyArray(), each, ((MapType) type).getKeyType()) + ", "
                            + of(map.valueArray(), each, ((MapType) type).getValueType()) + "]");
                }
                return "[" + String.join(", ", pairs) + "]";
            }
            case ROW: return ofRow(row.getRow(at, ((RowType) type).getFieldCount()), (RowType) type);
            default: throw new IllegalArgumentException(type.toString());
        }
    }

    private static String ofArray(InternalArray array, DataType type) {
        List<String> parts = new ArrayList<>();
        for (int each = 0; each < array.size(); each++) {
            parts.add(of(array, each, type));
        }
        return "[" + String.join(", ", parts) + "]";
    }

    private static String text(String value) {
        StringBuilder out = new StringBuilder("\"");
        for (int at = 0; at < value.length(); at++) {
            char each = value.charAt(at);
            out.append(each < 32 || each > 126 || each == '"' || each == '\\' ? String.format("\\u%04x", (int) each) : String.valueOf(each));
        }
        return out.append('"').toString();
    }
}
