-- The table of Cassandra that the example DAG `flights_everywhere` writes into. The number that a flight has among its
-- carrier's makes its key.
CREATE TABLE flights (
    carrier text,
    carrier_count bigint,
    year int,
    month int,
    day int,
    dep_time int,
    sched_dep_time int,
    dep_delay int,
    arr_time int,
    sched_arr_time int,
    arr_delay int,
    flight int,
    tailnum text,
    origin text,
    dest text,
    air_time int,
    distance int,
    hour int,
    minute int,
    time_hour timestamp,
    random double,
    PRIMARY KEY (carrier, carrier_count)
)
