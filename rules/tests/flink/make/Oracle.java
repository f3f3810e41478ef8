import java.io.BufferedReader;
import java.io.PrintWriter;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.functions.TimedOutPartialMatchHandler;
import org.apache.flink.cep.nfa.aftermatch.AfterMatchSkipStrategy;
import org.apache.flink.cep.nfa.aftermatch.SkipToFirstStrategy;
import org.apache.flink.cep.nfa.aftermatch.SkipToLastStrategy;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.WithinType;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.flink.streaming.api.datastream.DataStreamUtils;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.DiscardingSink;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.streaming.api.functions.source.SourceFunction;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/** Runs cases through Flink CEP and writes what it put out into their `expect`. Usage: Oracle IN.jsonl OUT.jsonl */
public class Oracle {
  static final ObjectMapper JSON = new ObjectMapper();

  public static class Event implements Serializable {
    public long seq;
    public long ts;
    public String key;
    public String type;
    public double value;
  }

  /** Ends a source without the last watermark that Flink would send. */
  static class Stop extends RuntimeException {}

  static class Condition extends IterativeCondition<Event> {
    final String text;
    transient JsonNode node;

    Condition(JsonNode node) {
      text = node.toString();
    }

    @Override
    public boolean filter(Event event, Context<Event> held) throws Exception {
      if (node == null) node = JSON.readTree(text);
      return holds(node, event, held);
    }

    static boolean holds(JsonNode of, Event event, Context<Event> held) throws Exception {
      String op = of.get("op").asText();
      switch (op) {
        case "true":
          return true;
        case "false":
          return false;
        case "not":
          return !holds(of.get("arg"), event, held);
        case "and":
          for (JsonNode arg : of.get("args")) if (!holds(arg, event, held)) return false;
          return true;
        case "or":
          for (JsonNode arg : of.get("args")) if (holds(arg, event, held)) return true;
          return false;
        default:
          Object left = value(of.get("left"), event, held);
          Object right = value(of.get("right"), event, held);
          if (left == null || right == null || left.getClass() != right.getClass()) return false;
          int order =
              left instanceof String
                  ? ((String) left).compareTo((String) right)
                  : Double.compare((Double) left, (Double) right);
          return op.equals("eq") ? order == 0
              : op.equals("ne") ? order != 0
              : op.equals("gt") ? order > 0
              : op.equals("ge") ? order >= 0
              : op.equals("lt") ? order < 0
              : order <= 0;
      }
    }

    static Object value(JsonNode of, Event event, Context<Event> held) throws Exception {
      if (of.has("const")) {
        JsonNode constant = of.get("const");
        return constant.isTextual() ? (Object) constant.asText() : (Object) constant.asDouble();
      }
      if (of.has("field")) {
        switch (of.get("field").asText()) {
          case "type":
            return event.type;
          case "key":
            return event.key;
          case "ts":
            return (double) event.ts;
          case "seq":
            return (double) event.seq;
          default:
            return event.value;
        }
      }
      if (of.has("add")) {
        double sum = 0;
        for (JsonNode part : of.get("add")) {
          Object value = value(part, event, held);
          if (value == null) return null;
          sum += (Double) value;
        }
        return sum;
      }
      boolean times = of.has("of") && of.get("of").asText().equals("ts");
      double sum = 0, min = 0, max = 0, first = 0, last = 0;
      int count = 0;
      for (Event taken : held.getEventsForPattern(of.get("stage").asText())) {
        last = times ? (double) taken.ts : taken.value;
        if (count++ == 0) first = min = max = last;
        sum += last;
        min = Math.min(min, last);
        max = Math.max(max, last);
      }
      String aggregate = of.get("agg").asText();
      if (aggregate.equals("sum")) return sum;
      if (aggregate.equals("count")) return (double) count;
      if (count == 0) return null;
      switch (aggregate) {
        case "first":
          return first;
        case "last":
          return last;
        case "avg":
          return sum / count;
        case "min":
          return min;
        default:
          return max;
      }
    }
  }

  static WithinType within(JsonNode of) {
    boolean gap = of.has("within_type") && of.get("within_type").asText().equals("PREVIOUS_AND_CURRENT");
    return gap ? WithinType.PREVIOUS_AND_CURRENT : WithinType.FIRST_AND_LAST;
  }

  static AfterMatchSkipStrategy skip(JsonNode of) {
    boolean strict = of.has("throw_on_miss") && of.get("throw_on_miss").asBoolean();
    switch (of.get("strategy").asText()) {
      case "SKIP_TO_NEXT":
        return AfterMatchSkipStrategy.skipToNext();
      case "SKIP_PAST_LAST_EVENT":
        return AfterMatchSkipStrategy.skipPastLastEvent();
      case "SKIP_TO_FIRST":
        SkipToFirstStrategy first = AfterMatchSkipStrategy.skipToFirst(of.get("stage").asText());
        return strict ? first.throwExceptionOnMiss() : first;
      case "SKIP_TO_LAST":
        SkipToLastStrategy last = AfterMatchSkipStrategy.skipToLast(of.get("stage").asText());
        return strict ? last.throwExceptionOnMiss() : last;
      default:
        return AfterMatchSkipStrategy.noSkip();
    }
  }

  @SuppressWarnings({"rawtypes", "unchecked"})
  static Pattern pattern(JsonNode stages, AfterMatchSkipStrategy skip) {
    Pattern all = null;
    for (JsonNode stage : stages) {
      Pattern group = stage.has("group") ? pattern(stage.get("group"), null) : null;
      String name = group == null ? stage.get("name").asText() : null;
      if (all == null) {
        if (group != null) all = skip == null ? Pattern.begin(group) : Pattern.begin(group, skip);
        else all = skip == null ? Pattern.begin(name) : Pattern.begin(name, skip);
      } else {
        switch (stage.get("contiguity").asText()) {
          case "next":
            all = group != null ? all.next(group) : all.next(name);
            break;
          case "followedBy":
            all = group != null ? all.followedBy(group) : all.followedBy(name);
            break;
          case "followedByAny":
            all = group != null ? all.followedByAny(group) : all.followedByAny(name);
            break;
          case "notNext":
            all = all.notNext(name);
            break;
          default:
            all = all.notFollowedBy(name);
        }
      }
      if (stage.has("condition")) all = all.where(new Condition(stage.get("condition")));
      if (stage.has("quantifier")) all = quantified(all, stage.get("quantifier"));
      if (stage.has("until")) all = all.until(new Condition(stage.get("until")));
      if (stage.has("within_ms")) {
        all = all.within(Duration.ofMillis(stage.get("within_ms").asLong()), within(stage));
      }
    }
    return all;
  }

  @SuppressWarnings("rawtypes")
  static Pattern quantified(Pattern stage, JsonNode by) {
    Duration within = by.has("within_ms") ? Duration.ofMillis(by.get("within_ms").asLong()) : null;
    int n = by.has("n") ? by.get("n").asInt() : 0;
    switch (by.has("kind") ? by.get("kind").asText() : "one") {
      case "oneOrMore":
        stage = within == null ? stage.oneOrMore() : stage.oneOrMore(within);
        break;
      case "timesOrMore":
        stage = within == null ? stage.timesOrMore(n) : stage.timesOrMore(n, within);
        break;
      case "times":
        stage = within == null ? stage.times(n) : stage.times(n, within);
        break;
      case "timesRange":
        int from = by.get("from").asInt(), to = by.get("to").asInt();
        stage = within == null ? stage.times(from, to) : stage.times(from, to, within);
        break;
      default:
    }
    String inner = by.has("inner") ? by.get("inner").asText() : "";
    if (inner.equals("consecutive")) stage = stage.consecutive();
    if (inner.equals("allowCombinations")) stage = stage.allowCombinations();
    if (by.has("greedy") && by.get("greedy").asBoolean()) stage = stage.greedy();
    if (by.has("optional") && by.get("optional").asBoolean()) stage = stage.optional();
    return stage;
  }

  /** What came out of the case at hand. */
  static ArrayNode matches, timeouts, late, log;

  static void note(String kind, int index, long ts) {
    log.addArray().add(kind).add(index).add(ts);
  }

  static ObjectNode taken(Map<String, List<Event>> match) {
    ObjectNode stages = JSON.createObjectNode();
    match.forEach((name, events) -> {
      ArrayNode numbers = stages.putArray(name);
      events.forEach(event -> numbers.add(event.seq));
    });
    return stages;
  }

  static class Found extends PatternProcessFunction<Event, String> implements TimedOutPartialMatchHandler<Event> {
    @Override
    public void processMatch(Map<String, List<Event>> match, Context context, Collector<String> out) {
      note("M", matches.size(), context.timestamp());
      matches.add(taken(match));
    }

    @Override
    public void processTimedOutMatch(Map<String, List<Event>> match, Context context) {
      note("T", timeouts.size(), context.timestamp());
      timeouts.add(taken(match));
    }
  }

  static class Late implements SinkFunction<Event> {
    @Override
    public void invoke(Event event, Context context) {
      note("L", late.size(), event.ts);
      late.add(event.seq);
    }
  }

  static class ByKey implements KeySelector<Event, String> {
    @Override
    public String getKey(Event event) {
      return event.key;
    }
  }

  static class Source implements SourceFunction<Event> {
    final String text;
    long watermark = Long.MIN_VALUE;

    Source(JsonNode of) {
      text = of.toString();
    }

    void raise(SourceContext<Event> to, long ts) {
      if (ts > watermark) {
        watermark = ts;
        to.emitWatermark(new Watermark(ts));
      }
    }

    @Override
    public void run(SourceContext<Event> to) throws Exception {
      JsonNode of = JSON.readTree(text), mode = of.get("watermark");
      boolean each = mode.get("mode").asText().equals("per_event");
      int every = mode.has("every") ? mode.get("every").asInt() : 1;
      int count = 0, next = 0;
      long most = Long.MIN_VALUE;
      for (JsonNode from : of.get("events")) {
        Event event = new Event();
        event.seq = from.get("seq").asLong();
        event.ts = from.get("ts").asLong();
        event.key = from.get("key").asText();
        event.type = from.get("type").asText();
        event.value = from.get("value").asDouble();
        to.collectWithTimestamp(event, event.ts);
        count++;
        most = Math.max(most, event.ts);
        if (each && count % every == 0) raise(to, most - mode.get("out_of_orderness_ms").asLong() - 1);
        while (!each && next < mode.get("at").size() && mode.get("at").get(next).get(0).asInt() <= count) {
          raise(to, mode.get("at").get(next++).get(1).asLong());
        }
      }
      if (!mode.get("final_flush").asBoolean()) {
        // What was sent is with the operator by then.
        Thread.sleep(500);
        throw new Stop();
      }
      to.emitWatermark(Watermark.MAX_WATERMARK);
    }

    @Override
    public void cancel() {}
  }

  static boolean stopped(Throwable why) {
    while (why != null && !why.getClass().getName().contains("Stop")) why = why.getCause();
    return why != null;
  }

  @SuppressWarnings("unchecked")
  static JobGraph job(JsonNode of, Configuration settings) {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
    env.getConfig().enableObjectReuse();
    env.setBufferTimeout(0);
    JsonNode spec = of.get("pattern");
    Pattern<Event, ?> pattern = pattern(spec.get("stages"), skip(spec.get("skip")));
    if (spec.has("within_ms")) {
      pattern = pattern.within(Duration.ofMillis(spec.get("within_ms").asLong()), within(spec));
    }
    OutputTag<Event> tooLate = new OutputTag<Event>("late", TypeInformation.of(Event.class));
    SingleOutputStreamOperator<Event> events = env.addSource(new Source(of), TypeInformation.of(Event.class));
    SingleOutputStreamOperator<String> found =
        CEP.pattern(DataStreamUtils.reinterpretAsKeyedStream(events, new ByKey()), (Pattern<Event, Event>) pattern)
            .inEventTime()
            .sideOutputLateData(tooLate)
            .process(new Found(), Types.STRING);
    found.addSink(new DiscardingSink<>());
    found.getSideOutput(tooLate).addSink(new Late());
    return env.getStreamGraph().getJobGraph();
  }

  public static void main(String[] files) throws Exception {
    Configuration settings = new Configuration();
    settings.setString("restart-strategy.type", "none");
    settings.setString("rest.port", "0");
    MiniCluster cluster =
        new MiniCluster(
            new MiniClusterConfiguration.Builder()
                .setConfiguration(settings)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(1)
                .withRandomPorts()
                .build());
    cluster.start();
    try (BufferedReader in = Files.newBufferedReader(Paths.get(files[0]));
        PrintWriter out = new PrintWriter(Files.newBufferedWriter(Paths.get(files[1])))) {
      for (String line; (line = in.readLine()) != null; ) {
        JsonNode of = JSON.readTree(line);
        ObjectNode expect = JSON.createObjectNode();
        matches = expect.putArray("matches");
        timeouts = expect.putArray("timeouts");
        late = expect.putArray("late");
        log = expect.putArray("log");
        String phase = "compile";
        try {
          JobGraph job = job(of, settings);
          phase = "run";
          cluster.executeJobBlocking(job);
        } catch (Throwable why) {
          if (!stopped(why)) {
            expect = JSON.createObjectNode();
            while (why.getCause() != null) why = why.getCause();
            expect.putObject("error").put("phase", phase).put("message", String.valueOf(why.getMessage()));
          }
        }
        ((ObjectNode) of).set("expect", expect);
        out.println(of);
      }
    }
    cluster.close();
    System.exit(0);
  }
}
