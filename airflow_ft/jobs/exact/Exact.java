// Reads JSON records and fields of CSV exactly: a value counts only if it is what was written, otherwise the record is
// malformed. Spark's own readers round, wrap around, guess and drop. Compiled in the driver by Spark's compiler
// (Janino), which knows neither lambdas nor for-each over generics. See airflow_ft/jobs/exact/__init__.py.
package airflow_ft;

import java.io.Serializable;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneId;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeFormatterBuilder;
import java.time.format.ResolverStyle;
import java.time.temporal.ChronoField;
import java.time.temporal.TemporalAccessor;
import java.time.temporal.TemporalQueries;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.rdd.InputFileBlockHolder;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.catalyst.util.IntervalUtils;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

public final class Exact implements UDF2, Serializable {
  private static final long serialVersionUID = 1L;
  private static final String EMPTY = "\ufffdempty"; // what Spark returns for "", which is not null
  private static final int DEEPEST = 500;
  private static final int LONGEST_NUMBER = 1000;

  private static final int STRING = 0, STRUCT = 1, ARRAY = 2, MAP = 3, BOOLEAN = 4, INTEGER = 5, DECIMAL = 6;
  private static final int DOUBLE = 7, FLOAT = 8, DATE = 9, TIMESTAMP = 10, LOCAL = 11, BINARY = 12, DAY_TIME = 13;
  private static final int YEAR_MONTH = 14, TIME = 15;

  private final StructType schema;
  private final String what;
  private final ZoneId zone;
  private final HashMap options;
  private transient Node root;
  private transient Csv csv;
  private transient UTF8String block; // of a file, which is being read
  private transient boolean headerIsNext;

  /** what: "value" (one object), "records" (of a file's text), "lines" (of CSV) or "fields" (texts of CSV). */
  public Exact(StructType schema, String what, ZoneId zone, Map options) {
    this.schema = schema;
    this.what = what;
    this.zone = zone;
    this.options = new HashMap(options);
    root(); // refuses what it does not know
  }

  /** As a function of Spark. Made here, since Python may take another one of the methods of that name. */
  public UserDefinedFunction function(DataType result) {
    return functions.udf((UDF2) this, result);
  }

  private Node root() {
    if (root == null) {
      root = new Node(schema, "", true, options);
      csv = what.equals("lines") ? new Csv(options) : null;
    }
    return root;
  }

  /** Of a line of CSV: an array of no or one record. */
  private Object line(byte[] given, Object file) {
    // Spark sets it once a block of a file, so another object is another block, or another reader of this one.
    UTF8String now = InputFileBlockHolder.getInputFilePath();
    boolean isFirst = now != block && InputFileBlockHolder.getStartOffset() == 0;
    if (now != block) {
      block = now;
      headerIsNext = csv.header && isFirst;
    }
    String reason = null;
    Row made = null;
    try {
      String encoding = (String) options.get("encoding");
      String line = decoded(given, encoding);
      if (line == null) {
        reason = "not " + (encoding == null ? "UTF-8" : encoding);
      } else if (encoding != null && hasSeparator(line)) {
        reason = "not one line: Spark does not find the ends of lines in " + encoding
            + " (the option lineSep, and UTF-16LE or UTF-16BE for UTF-16)";
      } else {
        if (isFirst && line.startsWith("\ufeff")) {
          line = line.substring(1);
        }
        if (csv.isBlank(line, root().fields) || !csv.comment.isEmpty() && line.startsWith(csv.comment)) {
          return new Object[0];
        }
        if (headerIsNext) {
          headerIsNext = false;
          csv.check(csv.split(line), root().fields, (String) file);
          return new Object[0];
        }
        made = texts(csv.split(line));
      }
    } catch (Malformed error) {
      reason = "not of the declared schema" + error.where();
    }
    refuse(reason, given, file);
    return new Object[] {pair(reason, made)};
  }

  private boolean hasSeparator(String line) {
    String separator = (String) options.get("linesep");
    return separator == null ? line.indexOf('\n') >= 0 || line.indexOf('\r') >= 0 : line.contains(separator);
  }

  /** Reason (null: it is well) and row of a record; of "records" an array of them. `file` is where it lies. */
  public Object call(Object given, Object file) {
    String reason = null;
    Object row = null;
    Object[] rows = null;
    root();
    if (csv != null) {
      return line((byte[]) given, file);
    }
    try {
      if (given == null) {
        reason = "no value";
      } else if (what.equals("fields")) {
        row = fields((Row) given);
      } else {
        String encoding = (String) options.get("encoding");
        String text = decoded((byte[]) given, encoding);
        if (text == null) {
          reason = "not " + (encoding == null ? "UTF-8" : encoding);
        } else if (what.equals("records")) {
          rows = new Reading(text, zone).records(root());
        } else {
          row = new Reading(text, zone).whole(root());
        }
      }
    } catch (Malformed error) {
      reason = (what.equals("fields") ? "not of the declared schema" : "not one JSON object of the declared schema")
          + error.where();
    }
    refuse(reason, given, file);
    if (!what.equals("records")) {
      return pair(reason, row);
    }
    return reason == null ? rows : new Object[] {pair(reason, null)};
  }

  private void refuse(String reason, Object given, Object file) {
    if (reason != null && options.get("fail") != null) {
      throw new IllegalArgumentException(
          "[MALFORMED_RECORD_IN_PARSING] " + reason + " in the record that begins with " + beginning(given)
              + "\nwhile reading file " + file + ". ");
    }
  }

  private static String beginning(Object given) {
    String text = given instanceof Row ? ((Row) given).mkString(",").replace(EMPTY, "\"\"") : new String((byte[]) given, StandardCharsets.UTF_8);
    return text.substring(0, Math.min(text.length(), 80)).replaceAll("\\s", " ");
  }

  private static Row pair(String reason, Object row) {
    return RowFactory.create(new Object[] {reason, row});
  }

  /** Of Spark's reader of CSV, which has replaced bytes that are no text. */
  private Row fields(Row given) {
    String[] found = new String[given.length()];
    for (int i = 0; i < found.length; i++) {
      String text = (String) given.get(i);
      Node field = root().fields[i];
      if (text != null && text.equals(EMPTY)) {
        text = "";
      } else if (text != null && (field.kind == STRING || field.kind == BINARY) && text.indexOf('\ufffd') >= 0) {
        throw field.malformed("holds bytes that are no text");
      }
      found[i] = text;
    }
    return texts(found);
  }

  private Row texts(String[] given) {
    Node node = root();
    if (given.length != node.fields.length) {
      throw new Malformed("", given.length + " fields, and " + node.fields.length + " columns");
    }
    Object[] found = new Object[given.length];
    for (int i = 0; i < found.length; i++) {
      if (given[i] != null) {
        found[i] = node.fields[i].ofField(given[i], zone);
      } else if (!node.fields[i].nullable) {
        throw node.fields[i].malformed("has no value");
      }
    }
    return RowFactory.create(found);
  }

  /** null: it is none. */
  private static String decoded(byte[] bytes, String encoding) {
    if (encoding == null) {
      int at = 0;
      while (at < bytes.length && bytes[at] >= 0) {
        at++;
      }
      if (at == bytes.length) {
        return new String(bytes, StandardCharsets.ISO_8859_1);
      }
    }
    Charset charset = encoding == null ? StandardCharsets.UTF_8 : Charset.forName(encoding);
    try {
      return charset.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
    } catch (CharacterCodingException error) {
      return null;
    }
  }

  /** Divides a line of CSV into fields, as RFC 4180 and Spark's options say. */
  private static final class Csv {
    final boolean header;
    final String comment;
    private final String separator;
    private final int quote;
    private final int escape;
    private final int escapeOfEscape;
    private final String ofNull;
    private final String ofEmpty;
    private final boolean fromLeft;
    private final boolean fromRight;
    private final boolean caseSensitive;

    Csv(Map options) {
      header = is(options, "header");
      comment = text(options, "comment", "");
      separator = text(options, "separator", ",");
      if (separator.isEmpty()) {
        throw new UnsupportedOperationException("option sep is empty");
      }
      quote = character(options, "quote", '"');
      escape = character(options, "escape", quote);
      escapeOfEscape = character(options, "chartoescapequoteescaping", escape == quote ? -1 : escape);
      ofEmpty = text(options, "emptyvalue", "");
      ofNull = text(options, "nullvalue", options.get("emptyvalue") == null ? null : "");
      fromLeft = is(options, "ignoreleadingwhitespace");
      fromRight = is(options, "ignoretrailingwhitespace");
      caseSensitive = is(options, "casesensitive");
    }

    private static boolean is(Map options, String name) {
      return text(options, name, "").equalsIgnoreCase("true");
    }

    private static String text(Map options, String name, String other) {
      return options.get(name) == null ? other : (String) options.get(name);
    }

    /** -1: there is none. */
    private static int character(Map options, String name, int other) {
      String found = text(options, name, null);
      if (found == null) {
        return other;
      }
      if (found.length() > 1) {
        throw new UnsupportedOperationException("option " + name + " has more than one character");
      }
      return found.isEmpty() || found.charAt(0) == 0 ? -1 : (int) found.charAt(0);
    }

    /** Whether a line holds no record. Tabs may be separators, and spaces the text of an only column. */
    boolean isBlank(String line, Node[] fields) {
      if (!line.trim().isEmpty() || line.contains(separator)) {
        return false;
      }
      boolean isText = fields.length == 1 && (fields[0].kind == STRING || fields[0].kind == BINARY);
      return line.isEmpty() || fromLeft || fromRight || !isText;
    }

    void check(String[] names, Node[] fields, String file) {
      boolean fits = names.length == fields.length;
      String[] wanted = new String[fields.length];
      for (int i = 0; i < fields.length; i++) {
        wanted[i] = fields[i].path;
        fits = fits && names[i] != null && (caseSensitive ? names[i].equals(wanted[i]) : names[i].equalsIgnoreCase(wanted[i]));
      }
      if (!fits) {
        throw new IllegalArgumentException("CSV header does not conform to the schema.\n Header: "
            + String.join(", ", names) + "\n Schema: " + String.join(", ", wanted) + "\nCSV file: " + file);
      }
    }

    String[] split(String line) {
      ArrayList found = new ArrayList();
      int at = 0;
      do {
        at = field(line, at, found);
      } while (at >= 0);
      return (String[]) found.toArray(new String[0]);
    }

    /** Where the next field begins; -1: this is the last one. */
    private int field(String line, int from, ArrayList found) {
      int at = from;
      while (fromLeft && at < line.length() && line.charAt(at) <= ' ' && !line.startsWith(separator, at)) {
        at++;
      }
      int end;
      String value;
      if (at < line.length() && line.charAt(at) == quote) {
        StringBuilder made = new StringBuilder();
        end = quoted(line, at + 1, made);
        while (fromRight && end < line.length() && line.charAt(end) <= ' ' && !line.startsWith(separator, end)) {
          end++;
        }
        if (end < line.length() && !line.startsWith(separator, end)) {
          throw new Malformed("", "text behind a quoted field (the option escape says what stands before a quote in one)");
        }
        value = made.length() == 0 ? ofEmpty : made.toString();
      } else {
        end = line.indexOf(separator, at);
        end = end < 0 ? line.length() : end;
        int last = end;
        while (fromRight && last > at && line.charAt(last - 1) <= ' ') {
          last--;
        }
        value = last == at ? null : line.substring(at, last);
      }
      found.add(value == null || value.equals(ofNull) ? null : value);
      return end == line.length() ? -1 : end + separator.length();
    }

    /** Where a field ends, behind its quote. */
    private int quoted(String line, int from, StringBuilder made) {
      int at = from;
      while (at < line.length()) {
        char c = line.charAt(at);
        int next = at + 1 < line.length() ? (int) line.charAt(at + 1) : -1;
        if (c == escape && next >= 0 && next == quote) {
          made.append((char) quote);
          at += 2;
        } else if (c == escapeOfEscape && next >= 0 && next == escape) {
          made.append((char) escape);
          at += 2;
        } else if (c == quote) {
          return at + 1;
        } else {
          made.append(c);
          at++;
        }
      }
      throw new Malformed("", "a quote that is not closed (a field with line breaks needs the option multiLine)");
    }
  }

  /** Why a record is malformed. Values are not in it, since it goes into logs. */
  private static final class Malformed extends RuntimeException {
    private final String field;

    Malformed(String field, String why) {
      super(why, null, false, false);
      this.field = field;
    }

    String where() {
      String why = getMessage() == null ? "" : getMessage();
      return field.isEmpty() ? (why.isEmpty() ? "" : ": " + why) : ": field " + field + " " + why;
    }
  }

  /** A declared type, and how a text becomes its value. */
  private static final class Node {
    final String path;
    final boolean nullable;
    final String shown;
    int kind;
    int precision;
    int scale;
    int longest = -1;
    byte begin;
    byte end;
    HashMap places;
    Node[] fields;
    Node element;
    DateTimeFormatter format;
    String nan = "NaN";
    String[] infinite = new String[] {"Infinity", "+Infinity", "INF", "+INF"};
    String[] least = new String[] {"-Infinity", "-INF"};

    Node(DataType type, String path, boolean nullable, Map options) {
      this.path = path;
      this.nullable = nullable;
      this.shown = type.simpleString();
      if (type instanceof StructType) {
        kind = STRUCT;
        StructField[] given = ((StructType) type).fields();
        fields = new Node[given.length];
        places = new HashMap();
        for (int i = 0; i < given.length; i++) {
          String name = given[i].name();
          String below = path.isEmpty() ? name : path + "." + name;
          fields[i] = new Node(given[i].dataType(), below, given[i].nullable(), options);
          places.put(name, Integer.valueOf(i));
        }
      } else if (type instanceof ArrayType) {
        kind = ARRAY;
        element = new Node(((ArrayType) type).elementType(), path + "[]", ((ArrayType) type).containsNull(), options);
      } else if (type instanceof MapType) {
        kind = MAP;
        MapType map = (MapType) type;
        if (!(map.keyType() instanceof StringType)) {
          throw new UnsupportedOperationException(path + " " + shown + ": keys of JSON are strings");
        }
        element = new Node(map.valueType(), path + "{}", map.valueContainsNull(), options);
      } else if (type instanceof BooleanType) {
        kind = BOOLEAN;
      } else if (type instanceof ByteType) {
        integer(8);
      } else if (type instanceof ShortType) {
        integer(16);
      } else if (type instanceof IntegerType) {
        integer(32);
      } else if (type instanceof LongType) {
        integer(64);
      } else if (type instanceof DecimalType) {
        kind = DECIMAL;
        precision = ((DecimalType) type).precision();
        scale = ((DecimalType) type).scale();
      } else if (type instanceof DoubleType || type instanceof FloatType) {
        kind = type instanceof DoubleType ? DOUBLE : FLOAT;
        if (options.get("nanvalue") != null) {
          nan = (String) options.get("nanvalue");
        }
        if (options.get("positiveinf") != null) {
          infinite = new String[] {(String) options.get("positiveinf")};
        }
        if (options.get("negativeinf") != null) {
          least = new String[] {(String) options.get("negativeinf")};
        }
      } else if (type instanceof DateType) {
        kind = DATE;
        format = formatted(options.get("dateformat"));
      } else if (type instanceof TimestampType) {
        kind = TIMESTAMP;
        format = formatted(options.get("timestampformat"));
      } else if (type instanceof TimestampNTZType) {
        kind = LOCAL;
        format = formatted(options.get("timestampntzformat"));
      } else if (type instanceof BinaryType) {
        kind = BINARY;
      } else if (type instanceof DayTimeIntervalType) {
        kind = DAY_TIME;
        begin = ((DayTimeIntervalType) type).startField();
        end = ((DayTimeIntervalType) type).endField();
      } else if (type instanceof YearMonthIntervalType) {
        kind = YEAR_MONTH;
        begin = ((YearMonthIntervalType) type).startField();
        end = ((YearMonthIntervalType) type).endField();
      } else if (type instanceof CharType) {
        kind = STRING;
        longest = ((CharType) type).length();
      } else if (type instanceof VarcharType) {
        kind = STRING;
        longest = ((VarcharType) type).length();
      } else if (type instanceof StringType) {
        kind = STRING;
      } else if (shown.startsWith("time(")) {
        kind = TIME;
        precision = Integer.parseInt(shown.substring(5, shown.length() - 1));
      } else {
        throw new UnsupportedOperationException((path + " " + shown).trim());
      }
    }

    private void integer(int bits) {
      kind = INTEGER;
      precision = bits;
    }

    /** As Spark does: y is the year of the calendar, letters have any case, and a fraction may have fewer digits. */
    private static DateTimeFormatter formatted(Object pattern) {
      if (pattern == null) {
        return null;
      }
      DateTimeFormatterBuilder builder = new DateTimeFormatterBuilder().parseCaseInsensitive();
      String given = (String) pattern;
      StringBuilder part = new StringBuilder();
      boolean quoted = false;
      int at = 0;
      while (at < given.length()) {
        char c = given.charAt(at);
        int end = at + 1;
        while (c == 'S' && end < given.length() && given.charAt(end) == 'S') {
          end++;
        }
        // Directly behind other digits, as in ssSSS, only its whole length tells where it begins.
        if (c == 'S' && !quoted && at > 0 && !Character.isLetter(given.charAt(at - 1))) {
          builder.appendPattern(part.toString());
          builder.appendFraction(ChronoField.NANO_OF_SECOND, 1, Math.min(end - at, 9), false);
          part.setLength(0);
        } else {
          quoted ^= c == '\'';
          part.append(c == 'y' && !quoted ? "u" : given.substring(at, end)); // a text in quotes stays
        }
        at = end;
      }
      return builder.appendPattern(part.toString()).toFormatter(Locale.US).withResolverStyle(ResolverStyle.STRICT);
    }

    Malformed malformed(String why) {
      return new Malformed(path, why);
    }

    Malformed unfit() {
      return malformed("is no exact " + shown);
    }

    /** Of a bare token, such as 2.50. */
    Object ofNumber(String text, boolean whole) {
      if (text.length() > LONGEST_NUMBER) {
        throw unfit();
      }
      if (kind == INTEGER && whole) {
        return integer(text);
      }
      if (kind == DECIMAL) {
        return decimal(text);
      }
      if (kind == DOUBLE || kind == FLOAT) {
        return floating(text, whole);
      }
      throw unfit();
    }

    private Object integer(String text) {
      long value;
      try {
        value = Long.parseLong(text);
      } catch (NumberFormatException error) {
        throw unfit();
      }
      if (precision == 64) {
        return Long.valueOf(value);
      }
      if (value < -(1L << (precision - 1)) || value >= 1L << (precision - 1)) {
        throw unfit();
      }
      if (precision == 32) {
        return Integer.valueOf((int) value);
      }
      if (precision == 16) {
        return Short.valueOf((short) value);
      }
      return Byte.valueOf((byte) value);
    }

    private BigDecimal number(String text) {
      if (text.length() > LONGEST_NUMBER) {
        throw unfit();
      }
      try {
        return new BigDecimal(text);
      } catch (NumberFormatException error) { // an exponent that is none
        throw unfit();
      }
    }

    private Object decimal(String text) {
      BigDecimal found = number(text);
      if (found.signum() == 0) {
        return BigDecimal.ZERO.setScale(scale);
      }
      BigDecimal least;
      try {
        least = found.stripTrailingZeros();
      } catch (ArithmeticException error) { // an exponent at the end of its range
        throw unfit();
      }
      if (least.scale() > scale || (long) least.precision() - least.scale() > precision - scale) {
        throw unfit();
      }
      return least.setScale(scale);
    }

    /** The nearest one; but a whole number only if it is that very number, and neither zero nor infinity in its place. */
    private Object floating(String text, boolean whole) {
      BigDecimal exact = number(text);
      double found = kind == DOUBLE ? Double.parseDouble(text) : (double) Float.parseFloat(text);
      if (Double.isInfinite(found) || found == 0 && exact.signum() != 0) {
        throw unfit();
      }
      if (whole && new BigDecimal(found).compareTo(exact) != 0) {
        throw unfit();
      }
      return kind == DOUBLE ? (Object) Double.valueOf(found) : (Object) Float.valueOf((float) found);
    }

    private Object special(String text) {
      double found;
      if (text.equals(nan)) {
        found = Double.NaN;
      } else if (Arrays.asList(infinite).contains(text)) {
        found = Double.POSITIVE_INFINITY;
      } else if (Arrays.asList(least).contains(text)) {
        found = Double.NEGATIVE_INFINITY;
      } else {
        return null;
      }
      return kind == DOUBLE ? (Object) Double.valueOf(found) : (Object) Float.valueOf((float) found);
    }

    /** Of a text in JSON's quotes. */
    Object ofText(String text, ZoneId zone) {
      switch (kind) {
        case STRING:
          if (longest >= 0 && text.codePointCount(0, text.length()) > longest) {
            throw malformed("is longer than " + shown);
          }
          return text;
        case DECIMAL: // many write them so, since readers of JSON make doubles of numbers
          if (numberAt(text, 0) != text.length()) {
            throw unfit();
          }
          return decimal(text);
        case DOUBLE:
        case FLOAT:
          Object found = special(text);
          if (found == null) {
            throw unfit();
          }
          return found;
        case BINARY:
          try {
            byte[] bytes = Base64.getDecoder().decode(text);
            if (!Base64.getEncoder().encodeToString(bytes).equals(text)) {
              throw unfit();
            }
            return bytes;
          } catch (IllegalArgumentException error) {
            throw unfit();
          }
        default:
          return ofTime(text, zone);
      }
    }

    /** Of a field of CSV, where all is text. */
    Object ofField(String text, ZoneId zone) {
      switch (kind) {
        case BOOLEAN:
          if (text.equalsIgnoreCase("true") || text.equalsIgnoreCase("false")) {
            return Boolean.valueOf(text.equalsIgnoreCase("true"));
          }
          throw unfit();
        case DOUBLE:
        case FLOAT:
          Object found = special(text);
          if (found != null) {
            return found;
          }
        case INTEGER:
        case DECIMAL:
          String plain = unsigned(text);
          if (plain.isEmpty() || numberAt(plain, 0) != plain.length()) {
            throw unfit();
          }
          return ofNumber(plain, isWhole(plain));
        case BINARY:
          return text.getBytes(StandardCharsets.UTF_8);
        default:
          return ofText(text, zone);
      }
    }

    /** Without a plus, and zeros before the number, which files with columns of a fixed width have. */
    private static String unsigned(String text) {
      boolean negative = text.startsWith("-");
      int at = negative || text.startsWith("+") ? 1 : 0;
      while (at + 1 < text.length() && text.charAt(at) == '0' && digit(text, at + 1)) {
        at++;
      }
      return (negative ? "-" : "") + text.substring(at);
    }

    private Object ofTime(String text, ZoneId zone) {
      try {
        switch (kind) {
          case DATE:
            return format == null ? new Clock(text).date() : LocalDate.from(parsed(text, null));
          case TIMESTAMP:
            return format == null ? new Clock(text).instant(zone) : instant(parsed(text, zone), zone);
          case LOCAL:
            return format == null ? new Clock(text).local() : local(parsed(text, null));
          case TIME:
            return new Clock(text).time(precision);
          case DAY_TIME:
            whole(text);
            return IntervalUtils.microsToDuration(
                IntervalUtils.castStringToDTInterval(UTF8String.fromString(text), begin, end));
          case YEAR_MONTH:
            return IntervalUtils.monthsToPeriod(
                IntervalUtils.castStringToYMInterval(UTF8String.fromString(text), begin, end));
          default:
            throw unfit();
        }
      } catch (Malformed error) {
        throw unfit();
      } catch (DateTimeException error) {
        throw unfit();
      } catch (ArithmeticException error) {
        throw unfit();
      } catch (IllegalArgumentException error) { // of Spark's intervals
        throw unfit();
      }
    }

    /** Refuses digits behind the microseconds. */
    private void whole(String text) {
      int point = text.indexOf('.');
      for (int at = point + 7; point >= 0 && at < text.length() && digit(text, at); at++) {
        if (text.charAt(at) != '0') {
          throw unfit();
        }
      }
    }

    private TemporalAccessor parsed(String text, ZoneId zone) {
      TemporalAccessor found = format.parse(text);
      ZoneId own = (ZoneId) found.query(TemporalQueries.zone());
      if (own != null && zone == null || kind == DATE && hasTime(found)) { // the column would not keep it
        throw unfit();
      }
      TemporalAccessor kept;
      if (own != null) {
        kept = Instant.from(found).atZone(own);
      } else if (kind == DATE) {
        kept = LocalDate.from(found);
      } else {
        kept = local(found);
        if (((LocalDateTime) kept).getNano() % 1000 != 0) {
          throw unfit();
        }
      }
      int year = kept.get(ChronoField.YEAR);
      // The text itself may differ: +00:00 is written as Z, and optional parts may be missing.
      if (!moment(format.parse(format.format(kept))).equals(moment(found)) || year < 1 || year > 9999) {
        throw unfit();
      }
      return found;
    }

    private Object moment(TemporalAccessor parsed) {
      if (kind == DATE) {
        return LocalDate.from(parsed);
      }
      LocalDateTime local = local(parsed); // not the instant alone: a clock passes over some times of a zone
      return parsed.query(TemporalQueries.zone()) == null ? (Object) local : Arrays.asList(local, Instant.from(parsed));
    }

    private static boolean hasTime(TemporalAccessor parsed) {
      for (ChronoField field : ChronoField.values()) {
        if (field.isTimeBased() && parsed.isSupported(field)) {
          return true;
        }
      }
      return false;
    }

    /** A date without a time is the beginning of its day. */
    private static LocalDateTime local(TemporalAccessor parsed) {
      return hasTime(parsed) ? LocalDateTime.from(parsed) : LocalDate.from(parsed).atStartOfDay();
    }

    private Instant instant(TemporalAccessor parsed, ZoneId zone) {
      if (parsed.query(TemporalQueries.zone()) != null) {
        return micros(Instant.from(parsed));
      }
      return at(local(parsed), zone);
    }
  }

  private static Instant micros(Instant found) {
    if (found.getNano() % 1000 != 0) {
      throw new Malformed("", "");
    }
    return found;
  }

  /** Refuses a time that a clock passes over when it is put forward. */
  private static Instant at(LocalDateTime local, ZoneId zone) {
    if (!local.atZone(zone).toLocalDateTime().equals(local)) {
      throw new Malformed("", "");
    }
    return micros(local.atZone(zone).toInstant());
  }

  private static boolean digit(String text, int at) {
    return at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9';
  }

  private static boolean isWhole(String text) {
    return text.indexOf('.') < 0 && text.indexOf('e') < 0 && text.indexOf('E') < 0;
  }

  /** Where the number of JSON that begins here ends; -1: there is none. */
  private static int numberAt(String text, int from) {
    int at = from;
    if (at < text.length() && text.charAt(at) == '-') {
      at++;
    }
    if (!digit(text, at)) {
      return -1;
    }
    if (text.charAt(at) == '0') {
      at++;
    } else {
      at = digits(text, at);
    }
    if (at < text.length() && text.charAt(at) == '.') {
      if (!digit(text, at + 1)) {
        return -1;
      }
      at = digits(text, at + 1);
    }
    if (at < text.length() && (text.charAt(at) == 'e' || text.charAt(at) == 'E')) {
      at++;
      if (at < text.length() && (text.charAt(at) == '+' || text.charAt(at) == '-')) {
        at++;
      }
      if (!digit(text, at)) {
        return -1;
      }
      at = digits(text, at);
    }
    return at;
  }

  private static int digits(String text, int from) {
    int at = from;
    while (digit(text, at)) {
      at++;
    }
    return at;
  }

  /** Dates and times as ISO 8601 and SQL write them: 2024-05-01, 2024-05-01 12:30, 2024-05-01T12:30:00.25+02:00. */
  private static final class Clock {
    private final String text;
    private int at = 0;

    Clock(String text) {
      this.text = text;
    }

    LocalDate date() {
      LocalDate found = day();
      end();
      return found;
    }

    LocalDateTime local() {
      LocalDateTime found = dayAndTime();
      end();
      return found;
    }

    LocalTime time(int precision) {
      LocalTime found = timeOfDay();
      end();
      long unit = 1000000000L;
      for (int i = 0; i < precision; i++) {
        unit /= 10;
      }
      if (found.getNano() % unit != 0) {
        throw new Malformed("", "");
      }
      return found;
    }

    Instant instant(ZoneId session) {
      LocalDateTime found = dayAndTime();
      if (at == text.length()) {
        return Exact.at(found, session);
      }
      if (text.charAt(at) == ' ') {
        at++;
      }
      String name = text.substring(at);
      if (name.isEmpty() || name.indexOf(' ') >= 0) {
        throw new Malformed("", "");
      }
      return Exact.at(found, ZoneId.of(name)); // no short name: BST would be Dhaka's
    }

    private LocalDate day() {
      int year = digits(4, 4);
      if (year == 0) {
        throw new Malformed("", "");
      }
      skip('-');
      int month = digits(1, 2);
      skip('-');
      return LocalDate.of(year, month, digits(1, 2));
    }

    private LocalDateTime dayAndTime() {
      LocalDate day = day();
      if (at == text.length()) {
        return day.atStartOfDay();
      }
      if (text.charAt(at) != 'T' && text.charAt(at) != ' ') {
        throw new Malformed("", "");
      }
      at++;
      return LocalDateTime.of(day, timeOfDay());
    }

    private LocalTime timeOfDay() {
      int hour = digits(1, 2);
      skip(':');
      int minute = digits(1, 2);
      int second = 0;
      int nano = 0;
      if (at < text.length() && text.charAt(at) == ':') {
        at++;
        second = digits(1, 2);
        if (at < text.length() && text.charAt(at) == '.') {
          at++;
          int from = at;
          int unit = 100000000;
          while (digit(text, at)) {
            int value = text.charAt(at) - '0';
            if (at - from >= 6 && value != 0) {
              throw new Malformed("", "");
            }
            nano += value * unit;
            unit /= 10;
            at++;
          }
          if (at == from) {
            throw new Malformed("", "");
          }
        }
      }
      return LocalTime.of(hour, minute, second, nano);
    }

    private int digits(int least, int most) {
      int from = at;
      int found = 0;
      while (digit(text, at) && at - from < most) {
        found = found * 10 + (text.charAt(at) - '0');
        at++;
      }
      if (at - from < least || digit(text, at)) {
        throw new Malformed("", "");
      }
      return found;
    }

    private void skip(char wanted) {
      if (at >= text.length() || text.charAt(at) != wanted) {
        throw new Malformed("", "");
      }
      at++;
    }

    private void end() {
      if (at != text.length()) {
        throw new Malformed("", "");
      }
    }
  }

  /** One text of JSON (RFC 8259), from its beginning to its end. */
  private static final class Reading {
    private final String text;
    private final ZoneId zone;
    private int at = 0;

    Reading(String text, ZoneId zone) {
      this.text = text;
      this.zone = zone;
    }

    Object whole(Node node) {
      space();
      if (peek() != '{') {
        throw broken();
      }
      Object found = struct(node);
      space();
      if (at != text.length()) {
        throw broken();
      }
      return found;
    }

    /** The objects of a file: none, one, or an array of them. */
    Object[] records(Node node) {
      if (text.startsWith("\ufeff")) {
        at++;
      }
      space();
      ArrayList found = new ArrayList();
      if (at < text.length() && peek() == '[') {
        at++;
        space();
        if (peek() == ']') {
          at++;
        } else {
          do {
            space();
            found.add(pair(null, struct(node)));
          } while (more(']'));
        }
      } else if (at < text.length()) {
        found.add(pair(null, struct(node)));
      }
      space();
      if (at != text.length()) {
        throw broken();
      }
      return found.toArray();
    }

    private Object value(Node node) {
      space();
      int from = at;
      char c = peek();
      if (c == 'n') {
        word("null");
        if (!node.nullable) {
          throw node.malformed("is null");
        }
        return null;
      }
      switch (node.kind) {
        case STRING:
          if (c == '"') {
            return node.ofText(string(node), zone);
          }
          skip(0);
          return node.ofText(text.substring(from, at), zone);
        case STRUCT:
          if (c != '{') {
            throw node.unfit();
          }
          return struct(node);
        case ARRAY:
          if (c != '[') {
            throw node.unfit();
          }
          return array(node);
        case MAP:
          if (c != '{') {
            throw node.unfit();
          }
          return map(node);
        case BOOLEAN:
          if (c == 't') {
            word("true");
            return Boolean.TRUE;
          }
          if (c == 'f') {
            word("false");
            return Boolean.FALSE;
          }
          throw node.unfit();
        default:
          if (c == '"') {
            return node.ofText(string(node), zone);
          }
          int end = numberAt(text, at);
          if (end < 0) {
            throw node.unfit();
          }
          at = end;
          String number = text.substring(from, end);
          return node.ofNumber(number, isWhole(number));
      }
    }

    private Row struct(Node node) {
      open('{');
      Object[] found = new Object[node.fields.length];
      boolean[] seen = new boolean[node.fields.length];
      if (peek() == '}') {
        at++;
      } else {
        do {
          Integer place = (Integer) node.places.get(key(node));
          if (place == null) {
            skip(0);
            continue;
          }
          int index = place.intValue();
          if (seen[index]) {
            throw node.fields[index].malformed("comes twice");
          }
          seen[index] = true;
          found[index] = value(node.fields[index]);
        } while (more('}'));
      }
      for (int i = 0; i < seen.length; i++) {
        if (!seen[i] && !node.fields[i].nullable) {
          throw node.fields[i].malformed("has no value");
        }
      }
      return RowFactory.create(found);
    }

    private Object[] array(Node node) {
      open('[');
      ArrayList found = new ArrayList();
      if (peek() == ']') {
        at++;
      } else {
        do {
          found.add(value(node.element));
        } while (more(']'));
      }
      return found.toArray();
    }

    private Map map(Node node) {
      open('{');
      Map found = new java.util.LinkedHashMap();
      if (peek() == '}') {
        at++;
      } else {
        do {
          String name = key(node);
          if (found.containsKey(name)) {
            throw node.malformed("has a key twice");
          }
          found.put(name, value(node.element));
        } while (more('}'));
      }
      return found;
    }

    private void open(char wanted) {
      if (peek() != wanted) {
        throw broken();
      }
      at++;
      space();
    }

    /** The name of a field, and its colon. */
    private String key(Node node) {
      space();
      String found = string(node);
      colon();
      return found;
    }

    private void colon() {
      space();
      if (peek() != ':') {
        throw broken();
      }
      at++;
    }

    /** Behind an element: whether another one follows. */
    private boolean more(char end) {
      space();
      char c = peek();
      at++;
      if (c == end) {
        return false;
      }
      if (c != ',') {
        throw broken();
      }
      return true;
    }

    /** Passes by any value. */
    private void skip(int depth) {
      space();
      char c = peek();
      if (depth > DEEPEST) {
        throw broken();
      } else if (c == '"') {
        raw();
      } else if (c == '{' || c == '[') {
        char end = c == '{' ? '}' : ']';
        open(c);
        if (peek() == end) {
          at++;
          return;
        }
        do {
          if (c == '{') {
            space();
            raw();
            colon();
          }
          skip(depth + 1);
        } while (more(end));
      } else if (c == 't') {
        word("true");
      } else if (c == 'f') {
        word("false");
      } else if (c == 'n') {
        word("null");
      } else {
        int end = numberAt(text, at);
        if (end < 0) {
          throw broken();
        }
        at = end;
      }
    }

    /** Passes by a string; whether it has escapes. */
    private boolean raw() {
      if (peek() != '"') {
        throw broken();
      }
      boolean escaped = false;
      at++;
      while (true) {
        char c = peek();
        at++;
        if (c == '"') {
          return escaped;
        }
        if (c < ' ') {
          throw broken();
        }
        if (c == '\\') {
          escaped = true;
          char kind = peek();
          at++;
          if (kind == 'u') {
            for (int i = 0; i < 4; i++) {
              if (Character.digit(peek(), 16) < 0 || peek() > 'f') {
                throw broken();
              }
              at++;
            }
          } else if ("\"\\/bfnrt".indexOf(kind) < 0) {
            throw broken();
          }
        }
      }
    }

    private String string(Node node) {
      int from = at + 1;
      boolean escaped = raw();
      int to = at - 1;
      if (!escaped) {
        return text.substring(from, to);
      }
      StringBuilder made = new StringBuilder(to - from);
      boolean surrogates = false;
      for (int i = from; i < to; i++) {
        char c = text.charAt(i);
        if (c == '\\') {
          i++;
          c = text.charAt(i);
          if (c == 'u') {
            c = (char) Integer.parseInt(text.substring(i + 1, i + 5), 16);
            surrogates |= Character.isSurrogate(c);
            i += 4;
          } else {
            int which = "bfnrt".indexOf(c);
            c = which < 0 ? c : "\b\f\n\r\t".charAt(which);
          }
        }
        made.append(c);
      }
      for (int i = 0; surrogates && i < made.length(); i++) {
        char c = made.charAt(i);
        if (Character.isHighSurrogate(c) && i + 1 < made.length() && Character.isLowSurrogate(made.charAt(i + 1))) {
          i++;
        } else if (Character.isSurrogate(c)) {
          throw node.malformed("has half a character");
        }
      }
      return made.toString();
    }

    private void word(String wanted) {
      if (!text.startsWith(wanted, at)) {
        throw broken();
      }
      at += wanted.length();
    }

    private void space() {
      while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
        at++;
      }
    }

    private char peek() {
      if (at >= text.length()) {
        throw broken();
      }
      return text.charAt(at);
    }

    private static Malformed broken() {
      return new Malformed("", "");
    }
  }
}
