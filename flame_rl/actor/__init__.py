"""Everything that runs beside a simulator. This folder, and nothing of the learner, is shipped
to the executors of a cluster; nothing in it imports torch."""
