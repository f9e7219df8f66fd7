"""The tests of Brim: a package, because gmqtt installs one of this name, which would be found first."""
