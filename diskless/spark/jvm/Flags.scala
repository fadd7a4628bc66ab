package io.diskless.spark

import java.util.EnumSet

import org.apache.hadoop.fs.{CreateFlag, Path}

/** What Hadoop's create flags ask for, checked before anything is done. */
private[spark] object Flags {
  /** Whether a file that is there may be replaced. Throws what the contract says of flags that
    * make no sense or do not fit what is there; looks only where that matters. */
  def check(path: Path, flags: EnumSet[CreateFlag], exists: => Boolean): Boolean = {
    CreateFlag.validate(flags)
    val replaces = flags.contains(CreateFlag.OVERWRITE)
    if (!replaces || !flags.contains(CreateFlag.CREATE)) CreateFlag.validate(path, exists, flags)
    if (flags.contains(CreateFlag.APPEND)) throw noAppend(path)
    replaces
  }

  def noAppend(path: Path): UnsupportedOperationException = new UnsupportedOperationException(
    s"append $path: a file of diskless is written once; write a new one")
}
