package io.diskless.spark

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.core.StreamReadConstraints
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

/** A gateway that clients may use. */
private[spark] final case class Peer(
    slot: Int, gateway: String, socket: String, host: String, up: Boolean, slow: Boolean = false) {
  /** What failures are remembered by: a slot that came back elsewhere has not failed there. */
  def address: String = s"$gateway $socket"

  override def toString: String = if (slot >= 0) s"agent-$slot ($gateway)" else gateway
}

/** What a client sees of a path. */
private[spark] final case class Status(
    path: String, directory: Boolean, size: Long, mtimeMs: Long, id: Long, checksum: String) {
  def name: String = path.substring(path.lastIndexOf('/') + 1)
}

/** A byte range of a stripe, with the mark by which agents know that we may read of it. */
private[spark] final case class Extent(stripe: String, offset: Long, length: Long, mark: String)

private[spark] final case class Welcome(agents: Seq[Peer], epoch: Long)

/** The JSON side of frames. Whatever an agent adds to a reply later is ignored. */
private[spark] object Messages {
  val UnknownSlot: Int = -1

  private val mapper = new ObjectMapper()
  // A resumed upload lists its stripes in one meta; frames limit its size already.
  mapper.getFactory.setStreamReadConstraints(
    StreamReadConstraints.builder().maxStringLength(Frames.MetaBytesMax).build())

  def meta(): ObjectNode = JsonNodeFactory.instance.objectNode()

  def encode(node: JsonNode): Array[Byte] = mapper.writeValueAsBytes(node)

  def decode(bytes: Array[Byte]): JsonNode = mapper.readTree(bytes)

  def path(path: String): ObjectNode = meta().put("path", path)

  def status(node: JsonNode): Status = Status(
    node.path("path").asText, node.path("directory").asBoolean, node.path("size").asLong,
    node.path("mtime_ms").asLong, node.path("id").asLong, node.path("checksum").asText)

  def peers(node: JsonNode): Seq[Peer] = node.elements.asScala.map { peer =>
    Peer(peer.path("slot").asInt(UnknownSlot), peer.path("gateway").asText,
      peer.path("socket").asText, peer.path("host").asText, peer.path("up").asBoolean(true),
      peer.path("slow").asBoolean(false))
  }.toVector

  def welcome(node: JsonNode): Welcome =
    Welcome(peers(node.path("agents")), node.path("epoch").asLong)

  def extents(node: JsonNode): Vector[Extent] = node.elements.asScala.map { extent =>
    Extent(extent.get(0).asText, extent.get(1).asLong, extent.get(2).asLong,
      extent.path(3).asText)
  }.toVector

  def read(extents: Iterable[Extent]): ObjectNode = {
    val message = meta()
    val array = message.putArray("extents")
    for (extent <- extents) {
      val part = array.addArray().add(extent.stripe).add(extent.offset).add(extent.length)
      if (extent.mark.nonEmpty) part.add(extent.mark)
    }
    message
  }

  def refusal(node: JsonNode): DisklessException = new DisklessException(
    node.path("reason").asText, node.path("message").asText, node.path("retryable").asBoolean)
}
