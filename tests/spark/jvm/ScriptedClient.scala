package io.diskless.spark

import java.io.IOException
import java.net.URI
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}

/** The JVM's client as the specification of clients has it act: tests/spark/test_clients.py.
  *
  * An outcome is `done`, or an error's reason and what it says in the lines after it.
  */
final class ScriptedClient(gateways: String, token: String, timeoutMs: Long) {
  private val caller = new Caller(
    new Descriptor(Identity("scripted", Credential.parse(token), None),
      gateways.split(",").toSeq.map(Peer(Messages.UnknownSlot, _, "", "", up = true))),
    TimeUnit.MILLISECONDS.toNanos(timeoutMs))
  private val store = new Store(caller, lenientSync = false)

  def act(operation: String, size: Int): String =
    try {
      operation match {
        case "stat" => store.stat("/f"); "done"
        case "put" | "upload" => write(size); "done"
        case "read" => s"done ${read(size)}"
        case "summary" => files.getContentSummary(new Path("/d")); "done"
        case "delete_page" => deletePage(size); "done"
      }
    } catch {
      case error: IOException => s"${reason(error)}\n${error.getMessage}"
    }

  private lazy val files: FileSystem = {
    val conf = new Configuration(false)
    conf.set("fs.diskless.gateways", gateways)
    conf.set("fs.diskless.token", token)
    conf.set("fs.diskless.name", gateways) // Else all scenarios would share one caller.
    val made = new DisklessFileSystem
    made.initialize(URI.create("diskless:///"), conf)
    made
  }

  private def deletePage(count: Int): Unit = {
    val paths = (0 until count).map(n => new Path(s"diskless:///d/$n"))
    val failed = files.createBulkDelete(new Path("diskless:///d")).bulkDelete(paths.asJava)
    Check.that(failed.isEmpty, s"$failed")
  }

  private def write(size: Int): Unit = {
    val out = store.create("/f", overwrite = true)
    out.write(new Array[Byte](size))
    out.close()
  }

  /** The checksum of what was read. */
  private def read(size: Int): String = {
    val in = store.open("/f", new FileSystem.Statistics(Descriptor.Scheme))
    val bytes = new Array[Byte](size)
    try in.readFully(0L, bytes)
    finally in.close()
    Checksum.of(bytes)
  }

  private def reason(error: Throwable): String = error match {
    case ours: DisklessException => ours.reason
    case other if other.getCause != null => reason(other.getCause)
    case other => other.toString
  }
}

object ScriptedClient {
  /** What the specification calls these numbers. */
  def numbers: String = {
    def seconds(nanos: Long): Double = nanos / 1e9
    val found = Messages.meta()
      .put("attempts_min", Attempts.AttemptsMin)
      .put("garbled_max", Attempts.GarbledMax)
      .put("pause_s_min", seconds(Attempts.PauseNanosMin))
      .put("pause_s_max", seconds(Attempts.PauseNanosMax))
      .put("connect_s", seconds(Caller.ConnectNanos))
      .put("skip_s_min", seconds(Routes.SkipNanosMin))
      .put("skip_s_max", seconds(Routes.SkipNanosMax))
      .put("doubt", Routes.Doubt)
      .put("hindered_s", seconds(Routes.HinderedNanos))
      .put("ask_s", seconds(Routes.AskNanos))
      .put("refresh_s", seconds(Routes.RefreshNanos))
      .put("sequences_max", Sessions.WindowMax)
      .put("small_bytes_max", DisklessOutputStream.SmallBytesMax)
      .put("frame_bytes", Upload.FrameBytes)
      .put("write_frames_max", Upload.FramesMax)
      .put("unsealed_bytes_max", Upload.UnsealedBytesMax)
      .put("unsealed_bytes_limit", Upload.UnsealedBytesLimit)
      .put("piece_bytes", Content.PieceBytes)
      .put("pieces_max", Content.PiecesMax)
      .put("pieces_ahead_max", DisklessInputStream.PiecesMax)
      .put("prefetch_bytes", Content.PrefetchBytes)
      .put("reopens_max", Content.ReopensMax)
    found.toString
  }

  /** Runs the steps of a scenario of routes; "" or what was not as it says. */
  def routes(scenario: String): String = {
    var now = TimeUnit.SECONDS.toNanos(1000)
    val peers = (0 until 3).map(slot => Peer(slot, s"h:$slot", "", "h", up = true))
    val routes = new Routes(peers, "any", () => now)
    val byPlace = routes.peers
    var strangers = Set.empty[String]
    val wrong = for ((step, number) <- Messages.decode(scenario.getBytes).elements.asScala.zipWithIndex)
      yield {
        val (verb, value) = (step.fieldNames.next(), step.elements.next())
        verb match {
          case "leads" =>
            val leader = if (value.isNull) Frames.NoLeader else byPlace(value.asInt).slot
            routes.learn(leader, version = 1); ""
          case "fails" => routes.failed(byPlace(value.asInt)); ""
          case "hinders" => routes.hindered(byPlace(value.asInt)); ""
          case "works" => routes.worked(byPlace(value.asInt), now); ""
          case "refuses" =>
            strangers += byPlace(value.asInt).address
            routes.failed(byPlace(value.asInt)); ""
          case "tells the roster" =>
            routes.replace(peers, version = 1); ""
          case "no agent left" =>
            if (routes.noAgentLeft(strangers) == value.asBoolean) "" else s"step $number: it is not"
          case "passes_s" => now += (value.asDouble * 1e9).toLong; ""
          case _ => picked(byPlace.indexOf(routes.pick(verb == "bulk")), value, number)
        }
      }
    wrong.filter(_.nonEmpty).mkString("; ")
  }

  private def picked(found: Int, wanted: JsonNode, number: Int): String =
    if (found == wanted.asInt) "" else s"step $number picked $found"
}
